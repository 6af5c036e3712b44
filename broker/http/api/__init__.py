"""The handlers of calls, by noun: what each call takes, does and answers.

`fast_publish` answers single messages whose head is known. `batching` makes batches and sends them
to their owners. `payloads` and `topic_body` read and show JSON, `answers` has the structs of
answers.

Promises: an invalid request is refused before anything is changed.

Handlers keep nothing between calls, so a crash loses nothing.

Relies on the rows of `http/routes.py`.

Others use the handlers only through these rows.
"""
