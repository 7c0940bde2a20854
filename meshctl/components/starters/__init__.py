"""What `meshctl init` writes: for each kind of job a recipe, and a file with its classes. Each stands for itself and is to be changed.

train      one group learns from a source
grpo       a rollout group answers, a judge marks, a train group learns from the marks and publishes its weights
distill    a student learns what a teacher says
script     somebody's own script, written for torchrun
"""
