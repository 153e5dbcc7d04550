"""What stands before the HTTP application and needs no web framework: listeners, the first answers, and the
form of every answer. The application is made when the first request needs it.
"""
