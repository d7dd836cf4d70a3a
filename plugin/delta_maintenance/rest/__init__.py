"""Requests over HTTP: sessions, clients of REST interfaces, failures and retries."""
