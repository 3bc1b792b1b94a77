"""Chats: messages, tools and template fields in; tokens, options of the request and a reader of the answer out.

Which forms of messages and answers a model was trained with is read from its chat template.
"""
