"""Serving of a trained model over HTTP: `python -m vit_jax serve RUN`.

server.py      socket, start, and a stop that answers what has arrived
app.py         routes, status codes and error sentences; page.html is what a browser shows
reading.py     images of a request: a raw body, multipart, or base64 in JSON
limits.py      bytes, pixels, images and requests at once
service.py     a request from its images to its answer
batching.py    images of several requests in one batch
engine.py      preparing and computing batches of the compiled sizes
answers.py     results as JSON, the files of dense models, attention maps
card.py        description of the model
metrics.py     counters as Prometheus reads them
"""
