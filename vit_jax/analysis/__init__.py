"""Analysis of trained models: attention, features, weights, errors, robustness and reports.

attention/         weights, maps, rollout, relevance, distance, entropy, and figures of them
representations/   features of every layer, probes of them, similarity of layers
receptive_field/   effective (by gradients) and theoretical receptive fields
weights_view/      positions, filters, features, nearest neighbours
errors/            the most confident errors, calibration, rare classes, saliency
robustness/        accuracy under corruptions, perturbations and attacks; shape against texture
latency/           time, memory and cost of models side by side
monitoring/        diagnostics during training
report/            the figures of a run, and its HTML report
"""
