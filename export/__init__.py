"""Models written in our operators, from published weights or random ones. A model reads like its paper."""
