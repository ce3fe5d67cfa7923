"""Settings that no allocator can honour: every entrance must refuse them in the same words."""

from __future__ import annotations

# settings that contradict themselves -> words of the refusal; every entrance must say the same
REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "unknown predictor": ({"predictor": "betta"}, "nearest: 'beta'"),
    "unknown policy": ({"policy": "nonsense"}, "`policy` must be one of vip"),
    "unknown variance": ({"variance": "lerned"}, "nearest: 'learned'"),
    "unknown estimator": ({"estimator": "ppo"}, "`estimator` must be one of rloo"),
    "unknown weighting": ({"prompt_weighting": "none"}, "`prompt_weighting` must be one of"),
    "learned with grpo": ({"variance": "learned", "estimator": "grpo"}, "variance='learned' is derived for"),
    "learned with real rewards": (
        {"variance": "learned", "predictor": "reward_variance", "estimator": "rloo"},
        "variance='learned' tells success from failure",
    ),
    "learned with maxrl": ({"variance": "learned", "estimator": "maxrl"}, "variance='learned' is derived for"),
    "relaxed with maxrl": ({"policy": "relaxed", "estimator": "maxrl"}, "policy='relaxed' solves"),
    "maxrl with rewards below 0": ({"estimator": "maxrl", "reward_values": [-1, 1]}, "divides by the mean reward"),
    "maxrl with real rewards": ({"estimator": "maxrl", "predictor": "reward_variance"}, "divides by the mean reward"),
    "learned with relaxed": ({"variance": "learned", "policy": "relaxed"}, "policy='relaxed' cannot solve"),
    "learned with a success of its own": ({"variance": "learned", "success_reward": "accuracy"}, "takes the success"),
    "real rewards with a success": ({"predictor": "reward_variance", "success_reward": "accuracy"}, "knows no success"),
    "bounds": ({"min_group_size": 9, "max_group_size": 8}, "min_group_size <= max_group_size must hold"),
    "bound of zero": ({"min_group_size": 0}, "`min_group_size` must be a positive integer"),
    "bound not whole": ({"max_group_size": 8.5}, "`max_group_size` must be a positive integer"),
    "bound true": ({"max_group_size": True}, "`max_group_size` must be a positive integer"),
    "budget": ({"budget": -1}, "`budget` must be a positive integer"),
    "embeddings missing": ({"predictor": "gp"}, "needs embeddings"),
    "embeddings not read": ({"predictor": "beta", "embedding_model": "packaged"}, "`embedding_model` is read by"),
    "side information not read": (
        {"predictor": "last_rate", "side_information": ["difficulty"]},
        "`side_information` is read by",
    ),
    "reward values reversed": ({"reward_values": [1, 0]}, "ascending order"),
    "one reward value": ({"reward_values": [1]}, "ascending order"),
    "reward values not numbers": ({"reward_values": ["a", "b"]}, "ascending order"),
    "reward values not finite": ({"reward_values": [0, float("inf")]}, "ascending order"),
    "success said twice": ({"success_reward": "0.5", "reward_values": [0, 1]}, "say the same in two ways"),
    "success not finite": ({"success_reward": "nan"}, "a finite number"),
    "success graded by a word": ({"success_reward": "accuracy>=good"}, "NAME>=X"),
    "success a switch": ({"success_reward": True}, "the name of a reward function"),
    "success empty": ({"success_reward": " "}, "the name of a reward function"),
    "rates without rollouts": ({"initial_rates": "rate"}, "go together"),
    "discount": (
        {"initial_rates": "rate", "initial_rollouts": 8, "initial_discount": 1.5},
        "0 < initial_discount <= 1",
    ),
    "unknown selection": ({"selection": "learnabilty"}, "nearest: 'learnability'"),
    "no candidates": ({"candidates": 0}, "`candidates` must be a positive integer"),
    "exploration": ({"exploration": 1.5}, "0 <= exploration <= 1"),
    "rest": ({"max_rest": 0.5}, "max_rest >= 1"),
    "guard": ({"guard": "yes"}, "`guard` must be true or false"),
}
