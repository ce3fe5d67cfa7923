"""The errors that viprl raises. Each is also the built-in exception that a caller would expect."""


class ViprlError(Exception):
    """Base of every error that viprl raises on purpose."""


class InvalidInputError(ViprlError, ValueError):
    """An argument breaks a rule; the message states the rule, then the values."""


class ConfigurationError(InvalidInputError):
    """Settings that contradict each other or that a trainer cannot honour."""


class InfeasibleBudgetError(ConfigurationError):
    """No group sizes within the bounds add up to the budget."""


class UnknownPromptError(ViprlError, KeyError):
    """A prompt_id that the predictor was not built for."""

    def __str__(self) -> str:  # KeyError would print the message's repr
        return str(self.args[0]) if self.args else ""


class PlanError(ViprlError, RuntimeError):
    """A plan used against the protocol: observed twice, or by another allocator."""


class CheckpointError(ViprlError, ValueError):
    """A checkpoint that is damaged, of another format, or that does not fit the objects it is loaded into."""


class MissingDependencyError(ViprlError, ImportError):
    """An optional package is needed; the message names the extra that brings it."""
