"""Word alignments: the aligner, soft alignments of models, the Pharaoh format."""
