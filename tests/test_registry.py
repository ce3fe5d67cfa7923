"""One table of names."""

from __future__ import annotations

import pytest

from viprl import registry
from viprl.errors import ConfigurationError

KINDS: tuple[registry.Kind, ...] = ("predictor", "variance", "policy", "estimator")


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_and_alias_leads_to_its_entry(kind: registry.Kind) -> None:
    spellings = [word for entry in registry.entries(kind) for word in (entry.name, *entry.aliases)]
    assert len(set(spellings)) == len(spellings)
    for entry in registry.entries(kind):
        assert all(registry.find(kind, word) is entry for word in (entry.name, *entry.aliases))
        if entry.path:
            assert isinstance(entry.load(), type)


def test_policies_are_registered_by_their_own_names() -> None:
    for entry in registry.entries("policy"):
        assert entry.load().name == entry.name


def test_a_wrong_name_gets_the_nearest_and_all() -> None:
    with pytest.raises(ConfigurationError, match=r"calibrated, discounted_beta.*but got 'callibrated'; nearest: 'cali"):
        registry.canonical("predictor", "callibrated")
    assert registry.canonical("predictor", "gp") == "gaussian_process"


def test_names_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    mine = registry.Entry("mine", "viprl.prediction:DiscountedBeta", "my own", aliases=("my",))
    registry.register("predictor", mine)
    assert registry.find("predictor", "my") is mine
    with pytest.raises(ConfigurationError, match="are taken"):
        registry.register("predictor", registry.Entry("other", "", "", aliases=("beta",)))
