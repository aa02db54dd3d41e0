"""Settings of the shortest run on scenes: two steps, and an evaluation of eight images."""

TWO_STEPS = {
    "dataset": "scenes:digits:16",
    "data.test": "test[:8]",
    "data.workers": "0",
    "batch_size": "4",
    "duration": "2 steps",
    "schedule.warmup": "0",
    "log.every": "1 steps",
    "evaluate.every": "100%",
    "checkpoint.every": "100%",
}
