"""Requests over HTTP: sessions, clients of REST interfaces, failures and retries."""

from delta_maintenance.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, client="Answer HttpSession")
