"""What any partition needs: a share for every client, and enough skew to draw. Without NumPy, for the settings."""

from ..errors import UserError

MIN_ALPHA = 0.01  # below, both of two gamma draws underflow to 0 often enough to matter (24 % at 0.001)


def check_shares(kind: str, clients: int, labeled_clients: int | None, num_labeled: int, num_images: int) -> None:
    """Check that every client gets an image."""
    groups = [("partition.clients", clients, *((num_images, "") if kind == "dirichlet" else (num_labeled, "labeled ")))]
    if labeled_clients is not None:
        if labeled_clients >= clients:
            raise UserError(f"partition.labeled_clients = {labeled_clients}: expected fewer than the {clients} clients")
        groups = [
            ("partition.labeled_clients", labeled_clients, num_labeled, "labeled "),
            ("clients without labels", clients - labeled_clients, num_images - num_labeled, "unlabeled "),
        ]
    for who, number, images, sort in groups:
        if number > images:
            raise UserError(
                f"{who} = {number}: {images} {sort}images are too few for each client to hold one;"
                " use fewer clients or another number of labels"
            )
