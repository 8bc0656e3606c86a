"""What leaves the process: Prometheus, HTTP and ASGI, and text for a terminal.

`prometheus` turns a ledger into families; `routes` answers paths; `http` and `asgi` carry those answers; `text` draws
a story. Only this room knows Prometheus's and rich's libraries. Nothing is imported here: each costs only its users.
"""
