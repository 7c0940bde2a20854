"""The parts that samplers share: the columns of answers, and an engine that generates the answers of many
calls together."""
