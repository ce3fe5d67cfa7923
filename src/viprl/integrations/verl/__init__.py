"""Adaptive rollouts for verl's V1 synchronous trainer.

Nothing of verl is imported here. Installing viprl beside verl registers the plugin (``plugin.py``) in every Ray
process through verl's ``verl.plugins`` entry point; a run asks for it with ``trainer.v1.trainer_mode=viprl_sync``.

    options.py      the ``+viprl.*`` overrides of a run
    checks.py       what is refused at start, with the remedy
    weights.py      which loss settings keep equal prompt weights
    budget.py       the step's budget against batch sizes and data parallelism
    advantages.py   estimators for ragged groups, registered with verl
    setup.py        data set -> prompt ids, texts, side information -> allocator
    ledger.py       which rows of a batch answer which plan
    learned.py      ``+viprl.variance=learned``: log-probabilities -> norms -> the variance model
    agent_loop.py   rewards that are missing: None, NaN, a reward function that raises
    trainer.py      the trainer
    contract.py     what of verl is overridden; ``viprl doctor verl`` and a test check it
    doctor.py       the checks of ``viprl doctor verl``
    search_tool.py  retrieval as a tool of verl's agent loop
"""

from viprl.integrations.verl.options import AdaptiveOptions

TRAINER_MODE = "viprl_sync"

__all__ = ["TRAINER_MODE", "AdaptiveOptions"]
