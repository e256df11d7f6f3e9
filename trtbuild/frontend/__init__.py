"""OpenAI's HTTP API in front of the Triton model: `trtbuild serve FOLDER --openai`.

A request's way: `app` reads the body, `bodies` checks it, `asking` makes of it what the Triton model takes, `triton`
streams the answer over gRPC, `chat` and `completions` give it OpenAI's form, and `responses` sends it, as one document
or as server-sent events, and gives the request up when the client leaves. `errors` has OpenAI's form for what goes
wrong. It all runs in one event loop; nothing here computes.
"""
