"""Standalone pages for an evaluation: `python benchmarks/pages.py FOLDER [--untitled]`.

Forty pages about mountain huts, each of two to four chunks, and questions about them with golden spans. All say the same
kinds of things, and most paragraphs do not name the hut, so a chunk alone does not say whose it is. A page's name is its
title; with `--untitled` it stands in its first sentence alone, and the file is a number. Everything is drawn with a fixed seed.

Writes FOLDER/pages/, FOLDER/pages.yaml and FOLDER/questions.jsonl.
"""

import argparse
import json
import random
from pathlib import Path

NAMES = [
    "Arvenhalde",
    "Brunnkar",
    "Cavrelsattel",
    "Dornegg",
    "Eisfirn",
    "Falkentritt",
    "Gamsboden",
    "Hochlahn",
    "Innerfeld",
    "Jochwand",
    "Karlsruh",
    "Lerchspitz",
    "Mittagskogel",
    "Nebelhorn",
    "Obertal",
    "Plattkofel",
    "Querjoch",
    "Rotwand",
    "Steinkar",
    "Tristenau",
    "Urbachtal",
    "Valbella",
    "Wildseeloder",
    "Zirbental",
    "Almrausch",
    "Birkkar",
    "Edelrautenjoch",
    "Frauenkogel",
    "Grubenberg",
    "Hirschbichl",
    "Kaltwasser",
    "Lahngang",
    "Moosalm",
    "Nordend",
    "Ostgrat",
    "Pfarrboden",
    "Rinnensee",
    "Sonnleiten",
    "Tiefenbach",
    "Weissmoos",
]
PARAGRAPHS = Path(__file__).with_name("huts.txt")
CONFIG = """corpus: {corpus}
documents: {{uri: {documents}}}
model: {{name: smollm2-135m-instruct, max_model_len: 4096}}
embedding: {{name: all-minilm-l6-v2}}
"""


def page(name: str, chance: random.Random, titled: bool) -> tuple[str, list[tuple[str, str]]]:
    """A page, and of some facts the question and the sentence that answers it."""
    price, half, blankets = chance.randrange(18, 46), chance.randrange(38, 72), chance.randrange(3, 9)
    beds, rooms = chance.randrange(24, 160), chance.randrange(3, 14)
    opens, closes = (
        chance.choice(["1 June", "12 June", "20 June"]),
        chance.choice(["15 September", "30 September", "8 October"]),
    )
    quiet, breakfast = chance.choice(["21:30", "22:00", "22:30"]), chance.choice(["5:00", "5:30", "6:00", "6:30"])
    hours, climb = chance.randrange(2, 7), 50 * chance.randrange(9, 31)
    warden, spring = (
        chance.choice(["Ada", "Bruno", "Carla", "Dario", "Elsa", "Franz", "Greta", "Hugo"]),
        chance.randrange(1, 9),
    )
    dog = chance.choice(["may stay in the ski room", "must sleep in the stable", "are not admitted at all"])
    facts = {
        f"What does a bed cost for members at {name}?": f"A bed in the dormitory costs members {price} euros a night.",
        f"How much is half board at {name}?": f"With half board it is {half} euros, and children under ten pay half of that.",
        f"When must it be quiet at {name}?": f"From {quiet} on it must be quiet, also on the terrace.",
        f"From when on is there breakfast at {name}?": f"There is breakfast from {breakfast} on for those who start early.",
        f"Where do dogs sleep at {name}?": f"Dogs {dog}, and their owners bring what they eat.",
        f"How long is the way up to {name}?": f"The way up takes {hours} hours and climbs {climb} metres.",
        f"Where does the water of {name} come from?": f"Drinking water comes from a spring {spring} minutes behind it.",
    }
    numbers = {"name": name, "beds": beds, "rooms": rooms, "warden": warden, "opens": opens, "closes": closes}
    numbers |= {"blankets": blankets, **{f"fact_{place}": told for place, told in enumerate(facts.values())}}
    paragraphs = [line.format(**numbers) for line in PARAGRAPHS.read_text().splitlines()]
    chosen = paragraphs[:1] + chance.sample(paragraphs[1:], chance.randrange(3, 6))
    text = "\n\n".join([f"# {name}"] * titled + chosen) + "\n"
    return text, [(question, sentence) for question, sentence in facts.items() if sentence in text]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--untitled", action="store_true", help="names in the first sentence alone")
    options = parser.parse_args()
    documents = options.folder / "pages"
    documents.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, name in enumerate(NAMES):
        chance = random.Random(number)
        text, answers = page(name, chance, not options.untitled)
        file = f"{number:02}.txt" if options.untitled else f"{name.lower()}.md"
        (documents / file).write_text(text)
        for question, sentence in chance.sample(answers, 2):
            start = text.index(sentence)
            span = {"document_id": file, "start": start, "end": start + len(sentence)}
            lines.append(json.dumps({"query_id": f"p{len(lines):03}", "query": question, "spans": [span]}))
    (options.folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
    (options.folder / "pages.yaml").write_text(CONFIG.format(corpus=options.folder / "corpus", documents=documents))
    print(f"wrote {len(NAMES)} pages and {len(lines)} questions below {options.folder}")


if __name__ == "__main__":
    main()
