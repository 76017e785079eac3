"""What FedDEAP's pages compute: gradients at the start, sizes of messages, times, maps of accuracies, guesses."""

TEST_IMAGES = {"pacs": {"art_painting": 411, "cartoon": 471, "photo": 337, "sketch": 788},      # its released lists
               "office_caltech": {"amazon": 194, "caltech": 228, "dslr": 36, "webcam": 63}}     # a fifth of each class
