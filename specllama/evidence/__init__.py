"""The evidence tools. They show that a draft pays (`bench`, `compare`, `tune`) and changes nothing (`verify`, `eval`).

Each tool has a plan that is checked, a run over a Llama, a result that is data, and a report that is text. Modules that
several tools need stand beside the tools. The tools use only what a Llama and its engine offer to every user, and only
the command line uses the tools. Nothing here prints or reads the command line, and no code that generates text is here.
"""
