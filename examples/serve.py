"""Serve a finished run's model over HTTP, on this machine only.

pip install 'fssl[serve]'
fssl run smoke
python examples/serve.py runs/smoke
curl --data-binary @photo.png -H 'Content-Type: application/octet-stream' http://127.0.0.1:8000/predict
"""

import sys
from typing import Annotated

import uvicorn
from fastapi import Body, FastAPI, HTTPException

import fssl
from fssl.errors import UserError


def server(run: str) -> FastAPI:
    """Return an application that answers with the run's model."""
    app, model = FastAPI(title="What is on this image?"), fssl.load(run)

    @app.post("/predict")
    def predict(image: Annotated[bytes, Body(media_type="application/octet-stream")]) -> dict[str, float]:
        """Return the probability of every class for the image file in the request's body."""
        try:
            probabilities = model.predict(image).probabilities[0]
        except UserError as error:  # not an image, or one that is damaged or too large
            raise HTTPException(422, str(error)) from None
        return dict(zip(model.classes, probabilities.tolist(), strict=True))

    return app


if __name__ == "__main__":
    uvicorn.run(server(sys.argv[1]))
