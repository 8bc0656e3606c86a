"""A small LLM server on Triton kernels, instrumented with tritonprobe. README.md says how to run it.

`tokens` turns text into token ids and back; `model` is a decoder with random weights; `generation` is one request as
the engine holds it; `engine` batches generations continuously; `protocol` speaks OpenAI's JSON; `server` is the
HTTP app.
"""
