"""nvckpt inside trainers: each module needs its own library, and loads it when imported."""
