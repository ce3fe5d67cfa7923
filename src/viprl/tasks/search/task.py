"""Search as a task of ``viprl train``: questions, retriever, environment and reward from one set of settings."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viprl._files import default_cache_dir
from viprl.errors import ConfigurationError
from viprl.tasks.base import Task, check_positive
from viprl.tasks.search.agent import LoopLimits, ModelGenerate, Rollout, question_messages, run_rollouts
from viprl.tasks.search.environment import SearchEnvironmentFactory, prepare_tokenizer
from viprl.tasks.search.indexes import build_retriever
from viprl.tasks.search.prefetch import PrefetchingRetriever
from viprl.tasks.search.protocol import SYSTEM_PROMPT
from viprl.tasks.search.questions import Question, load_questions
from viprl.tasks.search.retrievers import Retriever
from viprl.tasks.search.rewards import SearchReward
from viprl.tasks.search.session import SearchLimits
from viprl.tasks.search.world import FactWorld

if TYPE_CHECKING:
    from datasets import Dataset

SYNTHETIC = "synthetic"


class SearchTask(Task):
    """Questions that are answered by searching.

    Args:
        questions: "synthetic" (a small world of facts, with a tiny model of its own), "musique", "hotpotqa",
            "bamboogle", or any word for files of your own.
        train, test: question files or hub ids; for all but "synthetic".
        retriever: "bm25", "dense", "dense:MODEL", or a server's URL.
        corpus: passages for a local retriever.
        reward: "em" or "f1"; with "f1" or a format weight use ``predictor: reward_variance``.
        train_size, test_size: questions used; None = all (synthetic: 240 and 120).
        seed: of the synthetic world.
        system_prompt: explain the protocol to the model; False for models that know it.
    """

    name = "search"
    chat = True
    max_completion_length = 4096

    def __init__(
        self,
        *,
        questions: str = SYNTHETIC,
        train: str | None = None,
        test: str | None = None,
        retriever: str = "bm25",
        corpus: str | None = None,
        top_k: int = 5,
        max_calls: int = 8,
        max_turns: int = 6,
        reward: str = "em",
        format_weight: float = 0.0,
        train_size: int | None = None,
        test_size: int | None = None,
        seed: int = 0,
        system_prompt: bool = True,
    ) -> None:
        check_positive(**{k: v for k, v in (("train_size", train_size), ("test_size", test_size)) if v is not None})
        self._world = FactWorld(seed=seed) if questions == SYNTHETIC else None
        self._reward = SearchReward(reward, format_weight=format_weight)  # type: ignore[arg-type]
        self._limits = SearchLimits(top_k=top_k, max_calls=max_calls)
        self._max_turns, self._seed = max_turns, seed
        self._system = SYSTEM_PROMPT if system_prompt and self._world is None else None
        if self._world is not None:
            self.max_completion_length = 190  # two searches, one of them after a broken call, and the answer
            self._train, self._test = self._world.split(train_size or 240, test_size or 120)
            self.retriever: Retriever = build_retriever("bm25", self._world.passages)
            return
        if train is None or test is None:
            raise ConfigurationError(f"questions={questions!r} needs `train` and `test`, but got ({train!r}, {test!r})")
        self._train = load_questions(questions, train, split="train", limit=train_size)
        self._test = load_questions(questions, test, split="validation", limit=test_size)
        self.retriever = build_retriever(retriever, corpus)

    def train_dataset(self) -> Dataset:
        return self._dataset(self._train)

    def test_dataset(self) -> Dataset:
        return self._dataset(self._test)

    def reward(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """See `SearchReward`."""
        return self._reward(prompts, completions, **columns)

    def trainer_options(self, tokenizer: Any) -> dict[str, Any]:
        """What the trainer needs beside the reward: the tool's environments; makes `tokenizer` parse tolerantly."""
        retriever = PrefetchingRetriever(self.retriever, top_k=self._limits.top_k)
        prepare_tokenizer(tokenizer, prefetch=retriever.prefetch)
        return {"environment_factory": SearchEnvironmentFactory(retriever, tokenizer, limits=self._limits)}

    def complete(
        self, model: Any, tokenizer: Any, rows: Sequence[Mapping[str, Any]], *, length: int, greedy: bool
    ) -> list[list[dict[str, Any]]]:
        """The messages of one rollout for each row, searches included; for held-out evaluation."""
        return [rollout.messages for rollout in self._rollouts(model, tokenizer, rows, length, greedy)]

    def _rollouts(
        self, model: Any, tokenizer: Any, rows: Sequence[Mapping[str, Any]], length: int, greedy: bool
    ) -> list[Rollout]:
        known = {question.id: question for question in (*self._test, *self._train)}
        return run_rollouts(
            ModelGenerate(model, tokenizer, temperature=0.0 if greedy else 1.0, batch_size=max(len(rows), 1)),
            tokenizer,
            [known[str(row["prompt_id"])] for row in rows],
            SearchEnvironmentFactory(self.retriever, tokenizer, limits=self._limits).session,
            limits=LoopLimits(max_turns=self._max_turns, max_turn_tokens=length, max_tokens=length),
            system_prompt=self._system,
        )

    def build_model(self, cache_dir: Path | None = None, *, seed: int = 0, log: Any = None) -> tuple[Any, Any]:
        """The synthetic world's tiny model, warm-started on first use and read from the cache afterwards."""
        if self._world is None:
            return super().build_model(cache_dir, log=log)
        from transformers import AutoTokenizer, LlamaForCausalLM

        from viprl.tasks.search import tiny

        recipe = tiny.WarmStart(seed=seed)
        text = json.dumps([tiny.FORMAT, dataclasses.asdict(recipe), dataclasses.asdict(self._world)], sort_keys=True)
        folder = (
            (cache_dir or default_cache_dir()) / "search-warm-start" / hashlib.sha256(text.encode()).hexdigest()[:16]
        )
        if not (folder / "recipe.json").exists():
            tokenizer = tiny.build_tokenizer(self._world)
            model = tiny.build_model(tokenizer, seed=seed)
            tiny.warm_start(model, tokenizer, self._world, recipe, progress=log)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            (folder / "recipe.json").write_text(text + "\n")  # written last: an entry without it is built again
        return LlamaForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)

    def _dataset(self, questions: Sequence[Question]) -> Dataset:
        from datasets import Dataset

        return Dataset.from_list(
            [
                {
                    "prompt": question_messages(question.question, self._system),
                    "prompt_id": question.id,
                    "answer": question.answers[0],
                    "answers": list(question.answers),
                }
                for question in questions
            ]
        )
