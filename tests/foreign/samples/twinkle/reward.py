def score(response):
    return float(response.strip().endswith("yes"))
