"""Serves a folder as a bucket over the S3 protocol, with moto, on a free port of this machine.

    python3 tools/corpora/serve_s3.py FOLDER --bucket NAME [--latency-ms 20] [--public]

Each file of FOLDER becomes an object, with its path from FOLDER as its key. Once all are there, prints the endpoint as
one line, `http://127.0.0.1:PORT`, and serves until standard input closes: a test that ends, however it ends, ends its
server. Needs no network. Any credentials are accepted. Reading an object without credentials is refused with 403,
unless --public.
"""

import argparse
import pathlib
import sys
import threading
import time

import boto3
from botocore.config import Config
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

# What clients may use too; moto accepts any.
CREDENTIALS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}


class QuietHandler(WSGIRequestHandler):
    """Writes no line for each request: a test that reads nothing would block the server when the pipe is full."""

    def log_request(self, code="-", size="-"):
        pass


class SlowApp:
    """Waits before each request is handled."""

    def __init__(self, app, latency_s):
        self.app = app
        # 0 while the folder is uploaded.
        self.wait_s = 0.0
        self.latency_s = latency_s

    def __call__(self, environ, start_response):
        time.sleep(self.wait_s)
        return self.app(environ, start_response)


def upload(endpoint, folder, bucket, acl):
    """Through the protocol, so that objects have the ETags and times that a client's own would have."""
    # A proxy of the environment does not reach this machine's own ports.
    client = boto3.client("s3", endpoint_url=endpoint, config=Config(proxies={}), **CREDENTIALS)
    client.create_bucket(Bucket=bucket, ACL=acl)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with open(path, "rb") as body:
                client.put_object(Bucket=bucket, Key=path.relative_to(folder).as_posix(), Body=body, ACL=acl)


def main():
    parser = argparse.ArgumentParser(description="Serves a folder as a bucket over the S3 protocol until stdin closes.")
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="the folder whose files become objects")
    parser.add_argument("--bucket", required=True, metavar="NAME", help="the bucket to create")
    parser.add_argument("--latency-ms", type=float, default=0.0, metavar="MS", help="wait so long before each answer")
    parser.add_argument("--public", action="store_true", help="let everyone read, also without credentials")
    args = parser.parse_args()
    if not args.folder.is_dir():
        parser.error(f"expected a folder, found none: {args.folder}")

    app = SlowApp(create_backend_app("s3"), args.latency_ms / 1000)
    # Port 0: the system chooses a free one, and the socket is bound before anyone learns its number.
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=QuietHandler)
    # It looks every 50 ms whether to end.
    serving = threading.Thread(target=server.serve_forever, args=(0.05,), name="s3", daemon=True)
    serving.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    upload(endpoint, args.folder, args.bucket, "public-read" if args.public else "private")
    app.wait_s = app.latency_s
    print(endpoint, flush=True)
    # Returns when the other end is closed, also when its process was killed.
    sys.stdin.buffer.read()
    server.shutdown()
    serving.join()


if __name__ == "__main__":
    main()
