"""What runs model-written programs: standard library only, started with `python -I`.

It knows nothing of the rest of colab_utils, since the evaluator's interpreter need not have it.
"""
