"""A trained policy in this process: trained, loaded, asked, evaluated and watched."""
