print("somebody's own script")
