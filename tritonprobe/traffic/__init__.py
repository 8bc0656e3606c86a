"""Traffic: what comes to a server, and what its senders saw of it. Knows no kernel and no server of ours.

`trace` reads and writes traces of requests; `generator` makes traffic up, like the real one that `azure` describes;
`client` sends a trace to a server (the only module here that needs httpx), with `sse` and `answer` reading what comes
back; `latency` sums it up.
"""
