"""The evidence tools. They show that a draft pays (`bench`, `compare`, `tune`) and changes nothing (`verify`, `eval`).

Each tool has a plan that is checked, a run over a Llama, a result that is data, and a report that is text. Modules that
several of them need stand beside them. They use only what a Llama and its engine offer to every user, and only the
command line uses them. Nothing here prints or reads the command line, and nothing that generates text belongs here.
"""
