"""One script per dataset: from the published files to one prepared file (see fedlib.datasets.prepare).

Installed as fedlib.readers, and imported under that name. A reader is a module, or an object of one: see
`fedlib.datasets.registry`.
"""
READERS = {     # name -> module[:object], in the order in which they are listed
    "mini_digits": "mini_digits",
    "mini_reviews": "mini_reviews",
    "digits": "digits",
    "rendered_digits": "rendered_digits",
    "office_caltech": "office_caltech",
    "pacs": "pacs",
    "office_home": "domain_folders:OFFICE_HOME",
    "vlcs": "domain_folders:VLCS",
    "terra_incognita": "domain_folders:TERRA",
    "camelyon17": "camelyon17",
    "femnist": "femnist",
    "domainnet": "domainnet:DOMAINNET",
    "domainnet_10": "domainnet:K10",
    "domainnet_50": "domainnet:K50",
    "domainnet_100": "domainnet:K100",
    "domainnet_150": "domainnet:K150",
    "domainnet_126": "domainnet:D126",
    "mnist": "mnist",
    "fashion_mnist": "fashion_mnist",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "tiny_imagenet": "tiny_imagenet",
    "cub200": "cub200",
    "ham10000": "ham10000",
    "ddr": "ddr",
    "ag_news": "ag_news",
    "amazon_reviews": "amazon_reviews",
}
