class SharedKernel:
    pass
