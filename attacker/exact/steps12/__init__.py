"""Steps I and II: from the gradients of rounds to every sample's h and v at one worker."""
