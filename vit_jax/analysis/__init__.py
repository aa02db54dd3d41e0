"""Looking inside: what a model attends to, has learned, knows in each layer, and gets wrong.

attention/         weights, maps, rollout, relevance, distance, entropy, and figures of them
representations/   features of every layer, what probes make of them, how similar layers are
receptive_field/   what a unit depends on, by gradients and by arithmetic
weights_view/      positions, filters, features, nearest neighbours
errors/            the most confident errors, calibration, rare classes, saliency
robustness/        accuracy on changed images: corruptions, perturbations, attacks, shape or texture
monitoring/        diagnostics while a model trains
report/            the figures of a run, and all of it on one page
"""
