"""From a validated config to a job: the plan with every reason, the confirmation of it, and the files that run."""
