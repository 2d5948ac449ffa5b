"""archsim: co-design simulator for mixture-of-experts serving on chiplet and wafer-scale GPUs."""
