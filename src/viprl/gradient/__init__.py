"""The truth about the gradient: per-rollout policy gradients and the variance of estimators built from them.

``capture``, ``uses`` and ``consumers`` see per-rollout gradients in a backward pass; ``sketch`` compresses them;
``rollouts`` and ``measure`` draw a pool of rollouts per prompt; ``moments`` and ``pool`` turn it into variances of
RLOO and Dr. GRPO for any group size; ``comparison`` compares allocations; ``norm_hook`` gives training runs the norms
that ``viprl.variance.OutcomeMoments`` learns from.
Measuring needs torch; moments, pools and comparisons need numpy and scipy.
"""
