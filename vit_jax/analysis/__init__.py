"""Looking inside: what a model attends to, has learned, knows in each layer, and gets wrong.

attention, attention_layers      weights, maps, rollout, relevance, distance, entropy
overlays, attention_plots        the same drawn over pictures and by layer
learned, learned_*               positions, filters, features, neighbours
receptive_field, layer_steps     what a unit depends on, by gradients and by arithmetic
layers, probe, probe_*           features of every layer, and what they are worth
similarity                       how alike two layers are
failures, saliency               mistakes, and what decided them
calibration, class_sizes         whether confidence is right, and what rare classes suffer
panels                           pieces of figures
plots, report, full_report, page the pictures of a run, and all of it on one page
robustness, robustness_*         accuracy on changed pictures
corruptions, perturbations,      the changes
attacks, shape_texture
contestants                      trained models that are tested side by side
watching, watching_plots         looks inside while a model trains
"""
