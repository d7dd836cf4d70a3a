"""The shared part of catalogs that answer over HTTP: authorization, requests, listings."""
