"""The evidence: what shows that a draft pays (`bench`, `compare`, `tune`) and changes nothing (`verify`, `eval`).

Each is a plan that is checked, a run over a Llama, a result that is data, and a report that is text; what several of
them need stands beside them. It asks a Llama and its engine for what both offer to everybody, and nothing but the
command line knows of it. Nothing here prints or reads the command line, and nothing that generates text belongs here.
"""
