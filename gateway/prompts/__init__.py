"""The conversion of messages and text to token ids: templates, control tokens, admission.

pipeline         the steps from a request to token ids, namespaces and block keys
    verbatim_turns   turns that keep the tokens that the model generated
    (files here)     a dialect's request, the form of its answer, published prefixes as tokens
    templates        chat templates: how they run, which chats they take, chats fitted to them
    chats            messages, tools, and the inputs of a template
    tokens           from text to token ids

Each folder imports only from the folders below it.
"""
