print("a script of your own")
