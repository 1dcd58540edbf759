"""Findings and the forms they are shown in; `render.render` picks the form."""
