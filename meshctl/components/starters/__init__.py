"""The templates of `meshctl init`. Each kind of job has a recipe and a Python file with its components, for
users to edit.

train      one group learns from a source
grpo       a rollout group answers, a judge scores, and a train group learns from the scores and publishes its
           weights
distill    a student learns the answers of a teacher
script     an existing script for torchrun

In a wheel this folder also has the recipes and the data of the other kinds, which are in `recipes/` of a
checkout.
"""
