"""NYU Depth V2 with DPT-Hybrid: metres of indoor scenes, from a model of relative depth.

    python train.py --config=configs/dense/dpt_nyu.py --workdir=runs/dpt_nyu \\
        --config.init_from=hf://Intel/dpt-hybrid-midas

Ranftl et al. (2021), "Vision Transformers for Dense Prediction", arXiv:2103.13413, section 4.1, and
their repository. A DPT that was trained with a loss that ignores factor and shift gives inverse
depths; `scale_shift` are the authors' mean factor and shift to those of NYU, so that the loss of
Eigen et al. begins near its end. Rates are those of their first training, ten times as high in the
decoder as in the encoder. Judged are the pixels of the crop of Eigen et al. with a depth of up to
10 metres.

Known to reach: delta1 90.4 %, AbsRel 0.110, RMSE 0.357 (table 3).
Differences: the paper names no length of this training; metrics are means over images.
Reached by us: not run; two updates on scenes are part of the tests.
Cost: 122,857,217 parameters, 302 GMACs an image.
"""

from vit_jax.config import default_config


def get_config():
    config = default_config()
    config.dataset = "dense:nyu_depth_v2"
    config.data.update(labels=False, train="train", test="validation", workers=8)
    config.data.update(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), resize="squash")
    config.augment.update(flip=0.5)
    config.task = "depth"
    config.objective.update(kind="silog", silog_share=0.5, max_depth=10.0, crop="eigen")
    config.model.update(name="DPT-Hybrid", image_size=(480, 640), scale_shift=(0.000305, 0.1378))
    config.precision = "bfloat16"
    config.optimizer.update(learning_rate=1e-4, weight_decay=0.0, clip=0.0)
    config.optimizer.lr_multipliers = (("backbone/.*", 0.1),)
    config.schedule.update(warmup="500 steps, at most 20%")
    config.batch_size = 16
    config.duration = "20 epochs"
    config.log.every = "50 steps"
    config.evaluate.every = "2 epochs"
    config.checkpoint.every = "1 epochs"
    return config
