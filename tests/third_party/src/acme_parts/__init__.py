"""Parts for bray that another distribution brings; its entry points say which."""
