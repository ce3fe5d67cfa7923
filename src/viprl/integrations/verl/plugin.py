"""Entry point of verl's plugin group ``verl.plugins``: registers the estimators and the trainer.

verl imports it at the end of ``import verl`` in every Ray process and hides import errors at debug level;
``viprl doctor verl`` shows them.
"""

from viprl.integrations.verl import advantages, trainer

__all__ = ["advantages", "trainer"]
