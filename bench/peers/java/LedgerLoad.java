import java.lang.management.ManagementFactory;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Apache's own client adding to a ledger, E = Qw = 3, Qa = 2, as fast as a window lets it.
 *
 * <p>URI ENTRY_BYTES WINDOW WARM_S SECONDS: a ledger to warm up and one that counts. The last line
 * is a JSON object.
 */
public final class LedgerLoad {
    private static final byte[] PASSWORD = {};

    private LedgerLoad() {}

    public static void main(String[] words) {
        int code = 0;
        try {
            System.out.println(measured(words));
        } catch (Throwable error) {
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            String[] said = String.valueOf(cause).split("\n"); // its first line is to be the last
            System.err.println(String.valueOf(error.getMessage()).split("\n")[0] + ": " + said[0]);
            code = 1;
        }
        System.out.flush();
        System.err.flush();
        Runtime.getRuntime().halt(code); // before anybody logs a line after it
    }

    private static String measured(String[] words) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(words[0]);
        conf.setUseV2WireProtocol(true);
        conf.setThrottleValue(0); // it would rest at 5,000 adds a second
        byte[] payload = new byte[Integer.parseInt(words[1])];
        new Random(7).nextBytes(payload);
        int window = Integer.parseInt(words[2]);
        BookKeeper client = new BookKeeper(conf);
        long warm = add(client, payload, window, Double.parseDouble(words[3]));
        var system = (com.sun.management.OperatingSystemMXBean)
                ManagementFactory.getOperatingSystemMXBean();
        long used = system.getProcessCpuTime();
        long began = System.nanoTime();
        long count = add(client, payload, window, Double.parseDouble(words[4]));
        double took = (System.nanoTime() - began) / 1e9;
        used = system.getProcessCpuTime() - used;
        return String.format(Locale.ROOT,
                "{\"acked\": %d, \"per_s\": %d, \"client_us\": %.2f}",
                warm + count, Math.round(count / took), used / 1e3 / count);
    }

    /** Entries that were acked, all that were added; the ledger is deleted. */
    private static long add(BookKeeper client, byte[] payload, int size, double seconds)
            throws Exception {
        LedgerHandle ledger =
                client.createLedger(3, 3, 2, BookKeeper.DigestType.CRC32C, PASSWORD);
        Semaphore window = new Semaphore(size);
        AtomicInteger failed = new AtomicInteger();
        long count = 0;
        long end = System.nanoTime() + Math.round(seconds * 1e9);
        while (System.nanoTime() < end && failed.get() == 0) {
            window.acquire();
            ledger.asyncAddEntry(
                    payload,
                    (code, handle, entry, context) -> {
                        failed.compareAndSet(0, code);
                        window.release();
                    },
                    null);
            count++;
        }
        window.acquire(size);
        if (failed.get() != 0) {
            throw BKException.create(failed.get());
        }
        ledger.close();
        client.deleteLedger(ledger.getId());
        return count;
    }
}
