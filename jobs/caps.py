"""What a night may cost: documents in order of priority until it is spent; the rest waits for the next nights.

Each document's tokens are counted first, as `plan` counts them. What costs nothing never waits, and one document always goes
on: one that is dearer than the cap would else never be done. A waiting changed document keeps its previous version.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from enrichment.errors import ConfigError
from jobs.config import Config
from jobs.difference import Asked, Plan, unchanged
from jobs.earlier_runs import Rates
from jobs.retries import Mask, integers


def allowed_tokens(rates: Rates, asked: Asked) -> float | None:
    """The tokens that the night may read and write, or None for any number. Raises ConfigError for a cap that says nothing."""
    caps = [("--max-tokens", asked.max_tokens), ("--max-minutes", asked.max_minutes)]
    for name, value in caps:
        if value is not None and not value > 0:
            raise ConfigError(f"{name} is {value}; it must be above 0")
    if asked.max_minutes is None:
        return asked.max_tokens
    if rates.tokens_per_s is None:
        raise ConfigError("--max-minutes needs an earlier run of this corpus to know its speed; give --max-tokens")
    return min(asked.max_minutes * 60 * rates.tokens_per_s, asked.max_tokens or np.inf)


def within(plan: Plan, counted: pa.Table, cap: float, config: Config, output_tokens: float) -> Plan:
    """The plan with as much of its work as the cap allows; `counted` has a row per document of the work, in any order.

    Raises ConfigError where a setting changed: then nothing old can be carried, so nothing can wait.
    """
    if plan.settings:
        raise ConfigError("a setting changed, so every document is due tonight and none can wait; run without a cap")
    costs = _costs(plan, counted, output_tokens)
    going = _chosen(plan, costs, cap, config.limits.order)
    is_new = plan.replaces < 0
    same = unchanged(plan)
    waiting_new, waiting_changed = int((~going & is_new).sum()), int((~going & ~is_new & ~same).sum())
    changes = replace(
        plan.changes,
        new=plan.changes.new - waiting_new,
        changed=plan.changes.changed - waiting_changed,
        pending_new=waiting_new,
        pending_changed=waiting_changed,
    )
    return replace(
        plan,
        work=plan.work.filter(pa.array(going)),
        replaces=plan.replaces[going],
        changes=changes,
        num_listed=plan.num_listed - waiting_new,
    )


def _costs(plan: Plan, counted: pa.Table, output_tokens: float) -> np.ndarray:
    """Tokens by row of the work. Records that share an id are one document and its duplicates, which cost nothing."""
    tokens = integers(counted["ideal"]) + integers(counted["block_rounding"])
    of_id = dict.fromkeys(counted["id"].to_pylist(), 0.0)
    for name, cost in zip(
        counted["id"].to_pylist(), tokens + integers(counted["generated"]) * output_tokens, strict=True
    ):
        of_id[name] = max(of_id[name], float(cost))
    return np.array([of_id[name] for name in plan.work["id"].to_pylist()])


def _chosen(plan: Plan, costs: np.ndarray, cap: float, order: tuple[str, str]) -> Mask:
    """Which rows of the work go on."""
    first, then = order
    kind = plan.replaces < 0 if first == "changed" else plan.replaces >= 0
    sizes = integers(plan.work["num_bytes"]) * (1 if then == "small" else -1)
    ranked = np.lexsort((np.arange(len(costs)), sizes, kind))
    going: Mask = np.zeros(len(costs), np.bool_)
    going[ranked] = np.cumsum(costs[ranked]) <= cap
    going |= costs == 0
    dear = ranked[costs[ranked] > 0]
    if len(dear) and not going[dear].any():
        going[dear[0]] = True
    return going
