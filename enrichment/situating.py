"""`situate`: one or two sentences that say where a chunk stands and what it refers to.

The instructions ask for four things: which document (and when), where in it, about what in words that stand alone, and what
every reference in the passage refers to. Nothing in them is an example: a small model takes examples for its document, and
asked about pronouns it writes about pronouns (docs/measurements.md, "Prompts tried").
"""

from enrichment.materials import Materials
from enrichment.prompts import Prompts, Wording

WORDING = Wording(
    instructions=(
        "Here is a document. It is followed by a request to situate one passage of it for people who search: say in at most"
        " two sentences which document this is and, if it is dated, when; where in it the passage stands; what the passage is"
        ' about, in words that can be understood without reading it; and whom or what words like "this" and "it" stand for.'
        " Use names instead of pronouns.\n\n"
    ),
    causal="\n\n---\nSituate the passage that you have just read last",
    quoted="\n\n---\nSituate one passage of the document",
    question="What is it about, and what are the names of what it speaks of?",
    answer="This passage",
)


def recipe(given: Materials) -> Prompts:
    """Contexts by the guards; a document with one chunk has nothing to situate."""
    return Prompts(given.tokenizer, given.chat, given.options.prompt, WORDING)
